"""Tables by depth, from the rows."""
