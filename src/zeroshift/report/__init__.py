"""Results for people: terminal tables, figures, one self-contained HTML page, and files of predictions."""
