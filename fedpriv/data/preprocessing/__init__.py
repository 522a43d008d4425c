"""How a run prepares its samples for its net, in a form that is stored; and new samples, prepared in the same way."""
