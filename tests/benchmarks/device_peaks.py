"""What this machine's GPU reaches at most, as a line for grader/devices.py. See `grader.workloads.peaks`.

python -m tests.benchmarks.device_peaks"""

import torch

from grader import machine
from grader.workloads.peaks import measured


def main() -> None:
    found = measured()
    rates = ", ".join(f"{name}={rate and float(f'{rate:.3g}'):.4g}" for name, rate in found.items() if rate)
    print(f"torch {torch.__version__}, CUDA {torch.version.cuda}")
    print(f'"{machine.gpu_name()}": Peaks({rates}, capability={torch.cuda.get_device_capability()}),')


if __name__ == "__main__":
    main()
