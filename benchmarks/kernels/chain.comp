#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(buffer_reference, scalar) readonly buffer Row { V x; V y; };
layout(push_constant) uniform Push { Row row; };

// The benchmark `chain_1m`; 4 groups of four numbers a lane.
void main() {
  V x_ = row.x, y_ = row.y;
  uint i = gl_WorkGroupID.x * S * 4 + gl_LocalInvocationID.x;
  for (uint k = 0; k < 4; k++, i += S) {
    vec4 x = x_.v[i];
    vec4 y = (1.0 - 2.0 / (exp(2.0 * (x * 1.7 + 0.3)) + 1.0)) / (1.0 + exp(-x));
    y += 0.5 * x * x;
    y_.v[i] = exp(-y * y) + max(y, 0.0);
  }
}
