"""Which defence to choose: a grid of methods and defences is trained and audited; the most accurate that meets a target wins."""
