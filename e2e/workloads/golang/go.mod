module borescope/e2e/workloads/golang

go 1.25.0
