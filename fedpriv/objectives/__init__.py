"""What one client minimises; one idea a file."""
