#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(buffer_reference, scalar) readonly buffer Row { F a; V b; V c; uint size; };
layout(push_constant) uniform Push { Row row; };
const uint R = 8, K = S < 8 ? S : 8;

// c = a b of square matrices; a workgroup makes R rows of 4 S columns. A lane loads one number of `a` a row and up to 8 steps
// of the sum, and the others get it by broadcast.
void main() {
  F a = row.a; V b = row.b, c = row.c;
  uint size = row.size, quarter = size / 4, lane = gl_LocalInvocationID.x;
  uint n = gl_WorkGroupID.x * S + lane, m = gl_WorkGroupID.y * R;
  vec4 sums[R];
  [[unroll]] for (uint r = 0; r < R; r++) sums[r] = vec4(0);
  for (uint k = 0; k < size; k += K) {
    float part[R];
    [[unroll]] for (uint r = 0; r < R; r++) part[r] = a.v[(m + r) * size + k + lane % K];
    [[unroll]] for (uint u = 0; u < K; u++) {
      vec4 column = b.v[(k + u) * quarter + n];
      [[unroll]] for (uint r = 0; r < R; r++) sums[r] = fma(vec4(subgroupBroadcast(part[r], u)), column, sums[r]);
    }
  }
  [[unroll]] for (uint r = 0; r < R; r++) c.v[(m + r) * quarter + n] = sums[r];
}
