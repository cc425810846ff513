"""The templates of a folder by name, and the built-in one. Never: which character uses which."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from appliance.errors import ConfigError, TemplateError
from appliance.prompt.templates.compiling import load_template, template_of
from appliance.prompt.templates.lint import refuse_errors
from appliance.prompt.templates.template import Template

DEFAULT_TEMPLATE = "default"

_DEFAULT = """\
name: default
description: The character's system text, then the conversation.
inputs:
  character:
    type: map
    scope: character
    sample: {id: mara, name: Mara, description: Keeper of a lighthouse., system: You are Mara.}
---
# Without a system text the model keeps its own.
- name: system
  zone: character
  role: system
  if: character.system
  content: "{{ character.system }}"
- name: history
  zone: history
"""


def built_in() -> dict[str, Template]:
    """The template of a character that names none."""
    return {DEFAULT_TEMPLATE: template_of(_DEFAULT, "the built-in template")}


def load_templates(directory: Path) -> Mapping[str, Template]:
    """Every `*.yaml` of a folder by its file name, and the built-in `default` unless a file is named so.

    Raises ConfigError with the first error that lint finds.
    """
    found = built_in()
    for path in sorted(directory.glob("*.yaml")):
        try:
            template = load_template(path)
            refuse_errors(template)
        except TemplateError as error:
            raise ConfigError(error.message) from error
        found[path.stem] = template
    return found
