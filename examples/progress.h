#pragma once
// A progress bar for a terminal; anywhere else only the line that ends it is printed.

#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>

class Progress {
 public:
  void start(std::string title, std::int64_t steps, std::int64_t done) {
    title_ = std::move(title);
    steps_ = steps;
    done_ = done;
  }
  void advance(double loss, double images_per_s) {
    ++done_;
    if (!terminal_) return;
    constexpr std::int64_t kWidth = 30;
    const auto filled = static_cast<std::size_t>(kWidth * done_ / steps_);
    fmt::print("\r{} [{:<30}] {}/{}  loss {:.4f}  {:.0f} images/s ", title_, std::string(filled, '#'), done_, steps_,
               loss, images_per_s);
    std::fflush(stdout);
    open_ = true;
  }
  /// Ends the line, with `text` in place of the bar unless it is empty.
  void finish(const std::string& text) {
    if (!text.empty()) fmt::print("{}{}  {}{}\n", open_ ? "\r" : "", title_, text, open_ ? "\033[K" : "");
    if (text.empty() && open_) fmt::print("\n");
    std::fflush(stdout);
    open_ = false;
  }

 private:
  const bool terminal_ = isatty(STDOUT_FILENO) != 0;
  std::string title_;
  std::int64_t steps_ = 1, done_ = 0;
  bool open_ = false;
};
