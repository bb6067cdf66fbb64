"""What one model run means: profiles, their arguments, lint rules, import and export."""
