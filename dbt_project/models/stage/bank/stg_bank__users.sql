{#- Written by `lakehouse scaffold`, its own while unchanged: 8f90524faf54fede -#}
{{ stage(
  source_model='parsed_bank__users',
  derived_columns={
    'user_id': 'id',
  },
  hashed_columns={
    'hk_user': ['id'],
    'hd_user_details': {'is_hashdiff': true, 'columns': ['email', 'name', 'created_at']},
    'hd_status': {'is_hashdiff': true, 'columns': []},
  },
) }}
