#pragma once
// The matrix products of one training step of an MLP and nothing else: the floor that a step is compared with.

#include <functional>

/// Calls cblas_sgemm with the sizes of forward and backward of 784-256-128-10 at batch 64. Empty in a build without
/// CBLAS.
std::function<void()> mlp_products();
