// What all of these share: one subgroup of S lanes a workgroup, and the calling convention of lowering/emit_memory.py.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_ballot : require

layout(local_size_x = S) in;
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer V { vec4 v[]; };
layout(buffer_reference, scalar) readonly buffer F { float v[]; };
