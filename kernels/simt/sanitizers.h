#pragma once
// Which of the compiler's sanitizers this file is built with: TANDEM_SIMT_ASAN, TANDEM_SIMT_TSAN.

#if defined(__SANITIZE_ADDRESS__)
#define TANDEM_SIMT_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TANDEM_SIMT_ASAN
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define TANDEM_SIMT_TSAN
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TANDEM_SIMT_TSAN
#endif
#endif
