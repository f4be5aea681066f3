// What the process may use: control group limits from made-up trees, and the real machine's figures.
#include <thread>

#include "base/cgroup.h"
#include "base/cpu.h"
#include "base/memory.h"
#include "gguf/temp_folder.h"
#include "test.h"

using namespace powerinfer;
using namespace pi_test;

namespace {

/// A file system root with control groups in it.
class FakeRoot {
 public:
  void file(const std::string& name, const std::string& content) {
    std::filesystem::create_directories((folder_ / name).parent_path());
    write_file(folder_ / name, content);
  }
  base::CgroupLimits limits() const { return base::read_cgroup_limits(folder_.path()); }

 private:
  TempFolder folder_;
};

constexpr const char* kMountV2 = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";

}  // namespace

TEST(no_groups_no_limits) {
  CHECK(!FakeRoot().limits().available_bytes && !FakeRoot().limits().n_cpus);
  FakeRoot root;
  root.file("proc/self/cgroup", "0::/user\n");
  root.file("proc/self/mountinfo", kMountV2);
  root.file("sys/fs/cgroup/user/memory.max", "max\n");
  root.file("sys/fs/cgroup/user/memory.current", "1000\n");
  root.file("sys/fs/cgroup/user/cpu.max", "max 100000\n");
  CHECK(!root.limits().available_bytes && !root.limits().n_cpus);
}

TEST(version_2_with_the_tightest_parent) {
  FakeRoot root;
  root.file("proc/self/cgroup", "0::/outer/inner\n");
  root.file("proc/self/mountinfo", std::string("garbage\n") + kMountV2);
  root.file("sys/fs/cgroup/outer/memory.max", "1000000\n");
  root.file("sys/fs/cgroup/outer/memory.current", "700000\n");
  root.file("sys/fs/cgroup/outer/memory.stat", "anon 5\ninactive_file 200000\n");
  root.file("sys/fs/cgroup/outer/cpu.max", "350000 100000\n");
  root.file("sys/fs/cgroup/outer/inner/memory.max", "900000\n");
  root.file("sys/fs/cgroup/outer/inner/memory.current", "100000\n");
  root.file("sys/fs/cgroup/outer/inner/cpu.max", "400000 100000\n");
  CHECK_EQ(root.limits().available_bytes.value(), std::uint64_t{500000});
  CHECK_EQ(root.limits().n_cpus.value(), 3.5);
}

TEST(version_2_inside_a_container) {
  FakeRoot root;
  root.file("proc/self/cgroup", "0::/../../host/only\n");
  root.file("proc/self/mountinfo", kMountV2);
  root.file("sys/fs/cgroup/memory.max", "4096\n");
  root.file("sys/fs/cgroup/memory.current", "9999\n");
  CHECK_EQ(root.limits().available_bytes.value(), std::uint64_t{0});
}

TEST(version_1) {
  FakeRoot root;
  root.file("proc/self/cgroup", "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n0::/\n");
  root.file("proc/self/mountinfo",
            "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
            "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n");
  root.file("sys/fs/cgroup/memory/memory.limit_in_bytes", "2000000\n");
  root.file("sys/fs/cgroup/memory/memory.usage_in_bytes", "1500000\n");
  root.file("sys/fs/cgroup/memory/memory.stat", "cache 3\ntotal_inactive_file 500000\n");
  root.file("sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", "150000\n");
  root.file("sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us", "100000\n");
  root.file("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  root.file("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  CHECK_EQ(root.limits().available_bytes.value(), std::uint64_t{1000000});
  CHECK_EQ(root.limits().n_cpus.value(), 1.5);
  root.file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  CHECK(!root.limits().available_bytes);
}

TEST(this_machine) {
  std::cout << base::cpu_name() << ", " << base::usable_physical_cores() << " cores, " << base::usable_logical_cores()
            << " logical, " << (base::available_memory_bytes() >> 20) << " MiB available\n";
  CHECK(base::usable_physical_cores() >= 1);
  CHECK(base::usable_physical_cores() <= base::usable_logical_cores());
  CHECK(base::usable_logical_cores() <= static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
  CHECK(base::available_memory_bytes() > (std::uint64_t{16} << 20));
  CHECK(!base::cpu_name().empty());
}

TEST_MAIN()
