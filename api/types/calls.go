package types

import "time"

// CallHour is the answer of GET /v1/calls.
type CallHour struct {
	// Minutes are the last 60 minutes, oldest first; Hour is their total.
	Minutes []CallMinute `json:"minutes"`
	Hour    CallMinute   `json:"hour"`
}

// CallMinute summarizes the calls that ended in one minute.
type CallMinute struct {
	BeganAt time.Time  `json:"beganAt"`
	Calls   int        `json:"calls"`
	Refused int        `json:"refused"`
	Ways    []WayTimes `json:"ways"`
}

// WayTimes are the times of the calls that got their container in one way: warm, frozen, pooled or
// cold.
type WayTimes struct {
	Way   string `json:"way"`
	Calls int    `json:"calls"`
	// Start is the time until the command was handed over, FirstByte until its first output, End
	// until the call was over.
	Start     Percentiles `json:"start"`
	FirstByte Percentiles `json:"firstByte"`
	End       Percentiles `json:"end"`
}

// Percentiles are in milliseconds, accurate to a fifth; 0 means that there are none.
type Percentiles struct {
	P50Ms float64 `json:"p50Ms"`
	P95Ms float64 `json:"p95Ms"`
}

// CallOutput is the answer of GET /v1/sandboxes/{id}/calls/{callId}/output.
type CallOutput struct {
	Output string `json:"output"`
	// Cut reports whether there was earlier output.
	Cut bool `json:"cut"`
}

// DoctorReport is the answer of GET /v1/doctor.
type DoctorReport struct {
	Findings []DoctorFinding `json:"findings"`
	// Settings are the settings in force.
	Settings []Setting `json:"settings"`
}

// DoctorFinding is the result of one check of the host.
type DoctorFinding struct {
	Check string `json:"check"`
	// Level is ok, warning, fault, or skipped if the check could not be made.
	Level  string `json:"level"`
	Found  string `json:"found"`
	Remedy string `json:"remedy,omitempty"`
}

// Setting is one setting of settings.json.
type Setting struct {
	Key   string `json:"key"`
	Value string `json:"value"` // as JSON; only its beginning if it is long
	// Live reports whether a change takes effect without a restart; Pending reports whether a
	// changed value waits for a restart.
	Live    bool `json:"live"`
	Pending bool `json:"pending"`
}
