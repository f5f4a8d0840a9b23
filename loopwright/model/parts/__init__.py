"""The parts that make one looped model differ from another: how the state starts, how the input re-enters, what differs per step,
how old and new state mix, when to halt."""
