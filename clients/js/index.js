export { LoadReporter, connectOptions } from "./lib/reporter.js";
export { worker } from "./lib/worker.js";
