"""The tutorials: notebooks with their stored outputs, as pages."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        assert notebook.abs_src_path
        page = PurePosixPath(notebook.src_uri).with_suffix(".md")
        outputs = f"{page.stem}_files"
        text, resources = MarkdownExporter().from_filename(
            notebook.abs_src_path, {"output_files_dir": outputs, "unique_key": Path(page).stem}
        )
        for name, content in resources["outputs"].items():
            files.append(File.generated(config, (page.parent / name).as_posix(), content=content))
        files.append(File.generated(config, page.as_posix(), content=text))
    return files
