"""Speed, memory and padding of the data pipeline beside other toolkits: `make bench-data`."""
