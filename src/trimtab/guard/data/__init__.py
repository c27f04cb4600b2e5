"""The order of the data, rewound and skipped."""
