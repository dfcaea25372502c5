//! Helper of labs for programs that do not lend themselves, such as tests.

#[cfg(target_os = "linux")]
fn main() {
    let arguments = std::env::args().skip(1).collect::<Vec<_>>();
    std::process::exit(tenbin_lab::guard_main(&arguments));
}

#[cfg(not(target_os = "linux"))]
fn main() {}
