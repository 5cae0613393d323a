"""Writes a reward model with random weights: a real safetensors file of a given size."""

import argparse
from pathlib import Path

import weights


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--bytes", type=int, required=True, help="of the weights, about")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(weights.make(args.directory / "model.safetensors", args.bytes, args.seed))


if __name__ == "__main__":
    main()
