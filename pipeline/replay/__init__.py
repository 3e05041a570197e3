"""The replay job: apply a log again and compare the results with the cluster's."""
