// tandem-bench links: do copies between the devices arrive, how fast, how soon?

#include <fmt/format.h>

#include <tandem/tandem.h>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"

using namespace tandem;

namespace {

struct Options {
  std::vector<Device> devices;
  parallel::LinkOptions links;
};

/// Two CPU devices, which stand for all, and every GPU.
std::vector<Device> default_devices() {
  std::vector<Device> devices{cpu(0)};
  if (device_count(DeviceType::CPU) > 1) devices.push_back(cpu(1));
  for (int i = 0; i < device_count(DeviceType::CUDA); ++i) devices.push_back(cuda(i));
  return devices;
}

int measure(const Options& options) {
  for (Device d : options.devices) fmt::print("{:<8} {}\n", str(d), get_device_name(d));
  const std::vector<parallel::Link> links = parallel::measure_links(options.devices, options.links);
  fmt::print("\n{}", parallel::links_table(links));
  const auto corrupt = std::count_if(links.begin(), links.end(), [](const auto& link) { return !link.intact(); });
  if (corrupt == 0) return 0;
  fmt::print(stderr, "tandem-bench: {} of {} links corrupt what is copied over them\n", corrupt, links.size());
  return 1;
}

}  // namespace

void add_links(CLI::App& app, Run& run) {
  const auto options = std::make_shared<Options>();
  options->devices = default_devices();
  CLI::App* command = app.add_subcommand("links", "Copies between all pairs of devices: checks and measures them.");
  command
      ->add_option_function<std::string>(
          "--devices",
          [options](const std::string& text) {
            try {
              options->devices = parse_devices(text);
            } catch (const Error& e) {
              throw CLI::ValidationError("--devices", e.what());
            }
          },
          "the devices; at first cpu:0, cpu:1 and every GPU")
      ->type_name("LIST");
  command->add_option("--bytes", options->links.bytes, "of a large copy")
      ->check(CLI::Range(std::int64_t{8}, std::int64_t{1} << 34))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--rounds", options->links.rounds, "how often the pairs take turns")
      ->check(CLI::Range(1, 1000))
      ->type_name("N")
      ->capture_default_str();
  command->callback([options, &run] { run = [options] { return measure(*options); }; });
}
