// Bisquitt's clients, which `.ci/run` builds for the tests. The checksums of go.sum hold.
module tenbin/tests/bisquitt

go 1.19

require github.com/energomonitor/bisquitt v0.6.0
