"""Tables as text: Markdown, LaTeX, HTML, JSON and CSV."""
