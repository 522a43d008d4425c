"""The audit as a page for people, in HTML and Markdown: templates, plots and the words around them."""
