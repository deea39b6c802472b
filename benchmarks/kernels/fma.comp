#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(buffer_reference, scalar) readonly buffer Row { V x; V y; };
layout(push_constant) uniform Push { Row row; };

// Four chains of multiply-adds: 256 rounds of 64 vector operations, 4 x 2 x 16384 floating-point operations a lane.
void main() {
  uint i = gl_WorkGroupID.x * S + gl_LocalInvocationID.x;
  vec4 c = row.x.v[gl_LocalInvocationID.x], a = c, b = c * 2.0, d = c * 3.0, e = c * 5.0;
  for (uint k = 0; k < 256; k++) {
    [[unroll]] for (uint u = 0; u < 16; u++) { a = fma(a, c, c); b = fma(b, c, c); d = fma(d, c, c); e = fma(e, c, c); }
  }
  row.y.v[i] = a + b + d + e;
}
