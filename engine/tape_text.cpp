// The tape as text: a table and a graph.

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "autograd.h"

namespace tandem {
namespace {

/// Every node behind `t`, latest first.
std::vector<const Node*> nodes_behind(const Tensor& t) {
  std::set<const Node*> seen;
  std::vector<const Node*> todo;
  const Edge root = gradient_edge(t);
  if (root) todo.push_back(root.node.get());
  while (!todo.empty()) {
    const Node* n = todo.back();
    todo.pop_back();
    if (!seen.insert(n).second) continue;
    for (const Edge& e : n->next()) {
      if (e) todo.push_back(e.node.get());
    }
  }
  std::vector<const Node*> nodes(seen.begin(), seen.end());
  std::sort(nodes.begin(), nodes.end(), [](const Node* a, const Node* b) { return a->sequence() > b->sequence(); });
  return nodes;
}

std::string outputs_text(const Node& n) {
  std::string text;
  for (const OutputMeta& m : n.outputs()) {
    text += (text.empty() ? "" : " ") + std::string(name_of(m.dtype)) + str(m.shape);
  }
  return text;
}

}  // namespace

std::string tape_table(const Tensor& t) {
  std::string text = fmt::format("{:>8}  {:<20} {:<7} {:<28} {}\n", "node", "name", "device", "output", "inputs");
  for (const Node* n : nodes_behind(t)) {
    std::string inputs;
    for (const Edge& e : n->next()) inputs += e ? fmt::format("{} ", e.node->sequence()) : std::string("- ");
    text += fmt::format("{:>8}  {:<20} {:<7} {:<28} {}\n", n->sequence(), n->name(), str(n->device()), outputs_text(*n),
                        inputs);
  }
  return text;
}

std::string tape_dot(const Tensor& t) {
  const std::vector<const Node*> nodes = nodes_behind(t);
  std::set<Device> devices;
  for (const Node* n : nodes) devices.insert(n->device());
  std::string text = "digraph tape {\n  rankdir=BT; node [shape=box, fontname=\"sans\"];\n";
  for (Device d : devices) {
    text += fmt::format("  subgraph \"cluster_{0}\" {{\n    label=\"{0}\";\n", str(d));
    for (const Node* n : nodes) {
      if (n->device() != d) continue;
      text += fmt::format("    n{} [label=\"{} {}\\n{}\"{}];\n", n->sequence(), n->sequence(), n->name(),
                          outputs_text(*n), n->is_accumulator() ? ", style=filled" : "");
    }
    text += "  }\n";
  }
  for (const Node* n : nodes) {
    for (const Edge& e : n->next()) {
      if (e) text += fmt::format("  n{} -> n{};\n", e.node->sequence(), n->sequence());
    }
  }
  return text + "}\n";
}

}  // namespace tandem
