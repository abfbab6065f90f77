"""Write ``gates/model/atlas.v1.schema.json`` from the shapes that read atlas files.

python scripts/atlas_schema.py            write the file
python scripts/atlas_schema.py --check    say whether the committed file is what the shapes say
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from cortex_plane.gates.files.keys import schema
from cortex_plane.gates.model import atlases

FILE = Path(atlases.__file__).parent / f"atlas.v{atlases.SCHEMA_VERSION}.schema.json"


def written() -> str:
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--check", action="store_true", help="compare instead of writing")
    if not arguments.parse_args().check:
        FILE.write_text(written())
        return 0
    if FILE.read_text() == written():
        return 0
    print(f"{FILE.name} is not what the shapes say: run python scripts/atlas_schema.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
