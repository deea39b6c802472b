#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(buffer_reference, scalar) readonly buffer Row { V p; V m; V v; V g; F bias; };
layout(push_constant) uniform Push { Row row; };

// One step in place, 32 groups of four numbers a lane; rate 1e-3, betas 0.9 and 0.95, epsilon 1e-8, decay 0.1.
// bias: 1 / (1 - beta**t) for both betas.
void main() {
  V p_ = row.p, m_ = row.m, v_ = row.v, g_ = row.g;
  float first = row.bias.v[0], second = row.bias.v[1];
  uint i = gl_WorkGroupID.x * S * 32 + gl_LocalInvocationID.x;
  for (uint k = 0; k < 32; k++, i += S) {
    vec4 p = p_.v[i], g = g_.v[i];
    vec4 m = 0.9 * m_.v[i] + 0.1 * g, v = 0.95 * v_.v[i] + 0.05 * g * g;
    m_.v[i] = m;
    v_.v[i] = v;
    p_.v[i] = p - 1e-3 * (m * first / (sqrt(v * second) + 1e-8) + 0.1 * p);
  }
}
