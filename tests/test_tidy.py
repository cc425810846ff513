"""The style rules that a machine can check. Each failure names the file, the line and the fix."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "appliance"

# A package may import itself, the base modules, and the packages named here.
ALLOWED: dict[str, set[str]] = {
    "base": set(),
    "prompt": set(),
    "wire": set(),
    "store": set(),
    "dbops": set(),
    "model": set(),
    "engine": {"model", "wire"},
    "experiment": {"store"},
    "chat": {"experiment", "prompt", "store", "wire"},
    "server": {"chat", "experiment", "prompt", "store", "wire"},
    "cli": {"server", "engine", "dbops", "experiment", "model", "prompt", "store", "wire"},
}

# A heavy dependency has few owners, so that no process pays for a library it does not use.
OWNERS = {
    "torch": {"model", "engine"},
    "safetensors": {"model"},
    "gguf": {"model"},
    "aiohttp": {"server"},
    "asyncpg": {"base", "store", "dbops"},
    "jinja2": {"prompt"},
    "yaml": {"prompt", "experiment"},
    "scipy": {"experiment"},
    "rich": {"cli"},
    "opentelemetry": {"base"},
}

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 400


def python_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def layer_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else "base"


def imported_modules(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: use an absolute import"
            assert node.module is not None
            if node.module == "appliance":
                yield from ((node.lineno, f"appliance.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, node.module


def broken_rule(layer: str, module: str) -> str | None:
    root, _, rest = module.partition(".")
    if root != "appliance":
        owners = OWNERS.get(root)
        if owners is not None and layer not in owners:
            return f"{root} belongs to {sorted(owners)}"
        return None
    target = rest.partition(".")[0]
    if target in ALLOWED and target != layer and target not in ALLOWED[layer]:
        return f"{layer} may not import {target}"
    return None


def test_imports_point_down_and_heavy_libraries_have_few_owners() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {rule}"
        for path in python_files()
        for line, module in imported_modules(parsed(path))
        if (rule := broken_rule(layer_of(path), module)) is not None
    ]
    assert not found, "\n".join(found)


def test_the_layers_have_no_cycle() -> None:
    left = {layer: set(below) for layer, below in ALLOWED.items()}
    while left:
        free = [layer for layer, below in left.items() if not below & left.keys()]
        assert free, f"these layers import each other in a circle: {sorted(left)}"
        for layer in free:
            del left[layer]


def test_a_folder_of_the_package_is_a_layer_of_the_table() -> None:
    folders = {layer_of(path) for path in python_files()}
    assert folders <= ALLOWED.keys()


def test_the_layer_rules_catch_a_bad_import() -> None:
    assert broken_rule("server", "torch") is not None
    assert broken_rule("store", "appliance.chat.turn") is not None
    assert broken_rule("server", "appliance.chat.turn") is None


def test_files_are_small_and_say_what_they_own() -> None:
    found = []
    for path in python_files():
        if len(path.read_text(encoding="utf-8").splitlines()) > FILE_LINES_MAX:
            found.append(f"{path}: over {FILE_LINES_MAX} lines: two nouns, split it")
        if not ast.get_docstring(parsed(path)):
            found.append(f"{path}: say in a module docstring what it owns and what it never does")
    for path in sorted((ROOT / "rust").rglob("*.rs")):
        lines = path.read_text(encoding="utf-8").splitlines()
        if len(lines) > FILE_LINES_MAX:
            found.append(f"{path}: over {FILE_LINES_MAX} lines: two nouns, split it")
        if "tests" not in path.parts and not lines[0].startswith("//!"):
            found.append(f"{path}: say in a //! comment what it owns")
    assert not found, "\n".join(found)


def test_functions_are_short_and_public_ones_documented() -> None:
    found = []
    for path in python_files():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno >= FUNCTION_LINES_MAX:
                    found.append(
                        f"{path}:{node.lineno}: {node.name} is over {FUNCTION_LINES_MAX} lines"
                    )
    for path in python_files():
        found += [
            f"{path}:{node.lineno}: {node.name} is public: document it"
            for node in undocumented(parsed(path))
        ]
    assert not found, "\n".join(found)


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def undocumented(tree: ast.Module) -> Iterator[Definition]:
    """Public top-level functions, public classes and their public methods without a docstring."""
    for node in tree.body:
        if not isinstance(node, Definition) or node.name.startswith("_"):
            continue
        if not ast.get_docstring(node):
            yield node
        if isinstance(node, ast.ClassDef) and not is_protocol(node):
            yield from (
                item
                for item in node.body
                if isinstance(item, Definition)
                and not item.name.startswith("_")
                and not ast.get_docstring(item)
            )


def is_protocol(node: ast.ClassDef) -> bool:
    return any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases)


@pytest.mark.parametrize(
    ("module", "banned"),
    [
        (
            "appliance.server.main",
            {"torch", "gguf", "safetensors", "transformers", "rich", "scipy", "opentelemetry"},
        ),
        ("appliance.cli.serve", {"torch", "transformers"}),
        ("appliance.cli.demo", {"torch", "transformers"}),
        ("appliance.cli.main", {"torch", "aiohttp", "asyncpg", "numpy", "rich", "scipy"}),
        # torch's compiler takes five seconds to load, and only a GPU's kernels bring it along.
        (
            "appliance.engine.main",
            {
                *("aiohttp", "asyncpg", "jinja2.sandbox", "transformers", "torch._dynamo"),
                "opentelemetry",
            },
        ),
    ],
)
def test_a_process_does_not_load_the_libraries_of_another(module: str, banned: set[str]) -> None:
    code = f"import sys, {module}; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.split()
    assert not banned & set(loaded)


def test_no_cancellation_is_lost_in_a_wait() -> None:
    # Before Python 3.12 `asyncio.wait_for` forgets a cancellation that comes with the result: what
    # was told to end goes on, and who waits for its end waits for ever. `asyncio.timeout` does not.
    for path in sorted((ROOT / "appliance").rglob("*.py")):
        assert "asyncio.wait_for(" not in path.read_text(encoding="utf-8"), path


def test_the_files_of_tests_that_go_first_are_there() -> None:
    named = re.findall(
        r'"(tests/.+\.py)"', (ROOT / "tests/conftest.py").read_text(encoding="utf-8")
    )
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_no_file_names_a_package_registry_or_a_path_of_one_machine() -> None:
    # Put together here so that this file does not hold them itself.
    banned = ["py" + "pi.org", "files.python" + "hosted", "index-" + "url", "/" + "work/main"]
    listed = subprocess.run(
        ["git", "ls-files"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.split()
    found = [
        f"{name}: {word}"
        for name in listed
        if (ROOT / name).suffix not in {".lock", ".png"} and (ROOT / name).is_file()
        for word in banned
        if word in (ROOT / name).read_text(encoding="utf-8", errors="replace")
    ]
    assert not found, "\n".join(found)
