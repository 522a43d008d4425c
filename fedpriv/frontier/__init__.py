"""Which defence to choose: a grid of methods and defences is trained and audited, and the cheapest point that holds is named."""
