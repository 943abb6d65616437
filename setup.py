"""What pyproject.toml cannot say: a wheel has conf/ and reward/ within convrec (convrec/base/shipped.py).

As top-level packages of site-packages their names would be anybody's. A checkout, installed with -e, keeps its folders.
"""

import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info

FOLDERS = ("conf", "reward")


class MoveFolders(build_py):
    def run(self) -> None:
        if self.editable_mode:
            super().run()
            return
        build = Path(self.build_lib)
        shutil.rmtree(build / "convrec", ignore_errors=True)  # of an earlier build
        super().run()
        for name in FOLDERS:
            shutil.move(build / name, build / "convrec" / f"_{name}")
        conf = build / "convrec" / "_conf"
        for file in conf.rglob("*.yaml"):
            file.write_text(file.read_text().replace("pkg://reward.", "pkg://convrec._reward."))
        # what a submitted job uploads of site-packages: our packages alone
        text = Path("runtime_env.yaml").read_text()
        moved = "|".join((*FOLDERS, "runtime_env.yaml"))
        (conf / "runtime_env.yaml").write_text(re.sub(rf'(?m)^  - "!/({moved})"\n', "", text))


class LeaveOutFolders(egg_info):
    def run(self) -> None:
        super().run()
        names = Path(self.egg_info) / "top_level.txt"
        names.write_text("".join(line for line in names.open() if line.strip() not in FOLDERS))


setup(cmdclass={"build_py": MoveFolders, "egg_info": LeaveOutFolders})
