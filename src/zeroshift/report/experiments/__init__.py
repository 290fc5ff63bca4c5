"""What experiments found, for people and programs: terminal, Markdown, LaTeX, CSV, JSON."""
