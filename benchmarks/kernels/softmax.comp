#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(buffer_reference, scalar) readonly buffer Row { V x; V y; };
layout(push_constant) uniform Push { Row row; };
const uint PARTS = 256 / S;

// Rows of 1024 numbers, one a workgroup, kept in registers.
void main() {
  V x = row.x, y = row.y;
  uint i = gl_WorkGroupID.x * 256 + gl_LocalInvocationID.x;
  vec4 r[PARTS];
  vec4 largest = vec4(-3.4e38);
  [[unroll]] for (uint k = 0; k < PARTS; k++) { r[k] = x.v[i + k * S]; largest = max(largest, r[k]); }
  float m = subgroupMax(max(max(largest.x, largest.y), max(largest.z, largest.w)));
  vec4 sum = vec4(0);
  [[unroll]] for (uint k = 0; k < PARTS; k++) { r[k] = exp(r[k] - m); sum += r[k]; }
  float scale = 1.0 / subgroupAdd(sum.x + sum.y + sum.z + sum.w);
  [[unroll]] for (uint k = 0; k < PARTS; k++) y.v[i + k * S] = r[k] * scale;
}
