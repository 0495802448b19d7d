{#- Written by `lakehouse scaffold`, its own while unchanged: 8d69eeebac354133 -#}
{{ timeline(source_model='sts_user', src_pk='hk_user', src_hashdiff='hd_status') }}
