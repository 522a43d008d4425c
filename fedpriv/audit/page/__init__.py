"""The audit's report in HTML and Markdown: templates, plots and texts."""
