#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(buffer_reference, scalar) readonly buffer Row { V x; V g; V y; };
layout(push_constant) uniform Push { Row row; };
const uint PARTS = 256 / S;

// Rows of 1024 numbers, one a workgroup, kept in registers.
void main() {
  V x = row.x, g = row.g, y = row.y;
  uint lane = gl_LocalInvocationID.x, i = gl_WorkGroupID.x * 256 + lane;
  vec4 r[PARTS];
  float sum = 0;
  [[unroll]] for (uint k = 0; k < PARTS; k++) { r[k] = x.v[i + k * S]; sum += dot(r[k], r[k]); }
  float scale = inversesqrt(subgroupAdd(sum) / 1024.0 + 1e-6);
  [[unroll]] for (uint k = 0; k < PARTS; k++) y.v[i + k * S] = r[k] * scale * g.v[lane + k * S];
}
