# Recipes for contributors; `just --list` shows them. CONTRIBUTING.md says which one to use after a change.

# Formats and lints the whole workspace, without building programs.
check:
    cargo fmt --check
    cargo clippy --workspace --all-targets -- -D warnings

# Runs all tests.
test:
    cargo test --workspace

# Runs the fast tests: units of all crates, suites of the pure crates, the project's texts, and the protocol with the
# built broker. `--workspace` selects the features of `just test`, so that both share one build. `--no-fail-fast` shows
# the failures of all suites at once. Examples of the documentation are in `just test` alone.
test-fast:
    cargo test --workspace --no-fail-fast --lib --test docs --test house --test requirements --test protocol \
        --test arbitrary_bytes --test properties --test round_trip --test rules --test vectors \
        --test zero_copy --test hostile --test joined --test model --test no_alloc --test ordered --test virtual_time \
        --test mutations --test client_peer --test gateway_peer --test long_sleep --test wheel --test scapy

# Measures the broker beside the other brokers that are installed; arguments as of benches/compare.
bench *arguments:
    cargo build --profile dist -p tenbin -p tenbin-loadgen -p tenbin-relay
    benches/compare {{ arguments }}

# Counts the instructions of a message's way through the broker.
instructions *arguments:
    .ci/instructions {{ arguments }}

# Runs each fuzz target for some seconds.
fuzz seconds='60' *targets:
    fuzz/run {{ seconds }} {{ targets }}

# Runs all checks that must pass before a change lands. Installs missing programs.
ci:
    .ci/run

# Plays the long forms of the suites that `ci` plays briefly; arguments as of .ci/long.
long *suites:
    .ci/long {{ suites }}

# Builds the site of the documentation in target/book, after the pages that are generated.
docs:
    UPDATE=1 cargo test --workspace --test docs
    mdbook build

# Checks licences, sources, duplicates and advisories of all dependencies.
deny:
    cargo deny --workspace check

# Builds the programs as they are released, and the Debian packages tenbin and tenbin-tools.
dist:
    deploy/debian/build
