"""What the pages say of looped models made from a dense one: the Ouroboros study, wide cores, chats."""
