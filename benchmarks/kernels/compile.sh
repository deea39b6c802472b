#!/bin/sh
# Rebuild the SPIR-V beside the sources, for subgroups of 4 to 64 lanes. Needs glslangValidator (glslang-tools).
set -eu
cd "$(dirname "$0")"
for source in *.comp; do
  for size in 4 8 16 32 64; do
    glslangValidator -V --target-env vulkan1.2 --quiet "-DS=$size" -I. "$source" -o "${source%.comp}_$size.spv"
  done
done
