"""What a run did to its samples before its net took them, in a form that is stored; and new samples, treated in the same way."""
