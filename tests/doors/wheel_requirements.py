"""wheel_requirements.py WHEEL PATTERN: what a wheel requires, a line each, but for packages whose
names match PATTERN."""

import re
import sys
import zipfile

wheel, pattern = zipfile.ZipFile(sys.argv[1]), re.compile(sys.argv[2])
metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
for line in wheel.read(metadata).decode().splitlines():
    if line.startswith("Requires-Dist:") and "extra ==" not in line:
        text = line.split(":", 1)[1].strip()
        if not pattern.fullmatch(re.match(r"[\w.-]+", text)[0].lower()):
            print(text)
