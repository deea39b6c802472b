#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(buffer_reference, scalar) readonly buffer Row { V x; V y; };
layout(push_constant) uniform Push { Row row; };

// y = x; 16 groups of four numbers a lane.
void main() {
  V x = row.x, y = row.y;
  uint i = gl_WorkGroupID.x * S * 16 + gl_LocalInvocationID.x;
  for (uint k = 0; k < 16; k++, i += S) y.v[i] = x.v[i];
}
