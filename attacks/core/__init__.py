"""What an attacker gets, what an attack gives back, and attacks by name with their options."""
