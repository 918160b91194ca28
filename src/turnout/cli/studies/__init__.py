"""Commands for studies, training and tuning."""
