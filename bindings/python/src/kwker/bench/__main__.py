# SPDX-License-Identifier: Apache-2.0
import sys

from kwker.bench.cli import main

sys.exit(main())
