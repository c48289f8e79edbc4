"""The models that the tests run on: those that the repository carries, or others that the environment names."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("TEST_TARGET_MODEL", ROOT / "target_model" / "embedded"))
DRAFT = Path(os.environ.get("TEST_DRAFT_MODEL", ROOT / "draft_model" / "embedded"))
TARGET_BF16 = ROOT / "target_model" / "embedded-bf16"
