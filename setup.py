"""Which packages the wheel holds; everything else about the project stands in pyproject.toml.

The library lies in top-level folders of the tree, and in the wheel under `aka/data/`, where `aka.kb.places` finds it.
"""

from setuptools import find_namespace_packages, setup

LIBRARY = {"knowledge": ["**/*.md"], "reference_kernels": ["**/*.py"]}

setup(
    packages=[*find_namespace_packages(include=["aka*"]), *(f"aka.data.{name}" for name in LIBRARY)],
    package_dir={f"aka.data.{name}": name for name in LIBRARY},
    include_package_data=False,  # what MANIFEST.in adds is for the sdist alone
    package_data={
        "aka": ["report/templates/*.j2", "kb/data/*"],
        **{f"aka.data.{name}": kinds for name, kinds in LIBRARY.items()},
    },
)
